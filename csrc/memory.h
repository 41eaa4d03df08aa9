// Large pieces of memory: aligned, zero at first, given back to the system at once, in large pages where it has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

class Memory {
public:
    Memory() = default;
    explicit Memory(std::size_t bytes);  // throws std::bad_alloc
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;

    std::uint8_t* bytes() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    std::size_t size() const { return size_; }

private:
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace karat

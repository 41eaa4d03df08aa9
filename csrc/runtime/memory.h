// Large pieces of memory: aligned, zero at first, given back to the system at once, in large pages where it has them.
// And what is mapped, read ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

namespace karat {

// The product of sizes. Throws std::bad_alloc where it is more than memory can have.
std::size_t product(std::initializer_list<std::size_t> sizes);

// Asks the system to begin to read these bytes of a mapped file, unless their first, middle and last page are in
// memory.
void read_ahead(const std::uint8_t* data, std::size_t bytes);

class Memory {
public:
    Memory() = default;
    // `together`: a piece of up to 16 MiB lies in large pages beside others, and is given back with the last of them.
    explicit Memory(std::size_t bytes, bool together = false);  // throws std::bad_alloc
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;

    std::uint8_t* bytes() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    std::size_t size() const { return size_; }

private:
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    std::shared_ptr<Memory> region_;  // in which it lies beside others
};

}  // namespace karat

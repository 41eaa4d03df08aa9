#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace karat {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

}  // namespace

Memory::Memory(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= 8 * kLargePage) (void)madvise(data, bytes, MADV_HUGEPAGE);  // advice: without it pages are small
#endif
    data_ = static_cast<std::uint8_t*>(data);
}

Memory::~Memory() {
    if (data_) munmap(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace karat

#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace karat {
namespace {

// AddressSanitizer watches what malloc gives, to the byte, but not pages that were mapped.
#if defined(__SANITIZE_ADDRESS__)
std::uint8_t* get(std::size_t bytes, Memory::Pages) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    return static_cast<std::uint8_t*>(std::memset(data, 0, bytes));
}
void give_back(std::uint8_t* data, std::size_t) { std::free(data); }
#else
constexpr std::size_t kLargePage = std::size_t{2} << 20;

std::uint8_t* get(std::size_t bytes, Memory::Pages pages) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= 8 * kLargePage)  // advice: a system may have its own mind
        (void)madvise(data, bytes, pages == Memory::Pages::large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    return static_cast<std::uint8_t*>(data);
}
void give_back(std::uint8_t* data, std::size_t bytes) { munmap(data, bytes); }
#endif

}  // namespace

std::size_t product(std::initializer_list<std::size_t> sizes) {
    std::size_t all = 1;
    for (const std::size_t size : sizes)
        if (__builtin_mul_overflow(all, size, &all)) throw std::bad_alloc();
    return all;
}

Memory::Memory(std::size_t bytes, Pages pages) : data_(bytes ? get(bytes, pages) : nullptr), size_(bytes) {}

Memory::~Memory() {
    if (data_) give_back(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace karat

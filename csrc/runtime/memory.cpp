#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace karat {
namespace {

// AddressSanitizer watches memory from malloc to the byte, but not mapped pages.
#if defined(__SANITIZE_ADDRESS__)
std::uint8_t* get(std::size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    return static_cast<std::uint8_t*>(std::memset(data, 0, bytes));
}
void give_back(std::uint8_t* data, std::size_t) { std::free(data); }
constexpr std::size_t kRegion = 0;  // each piece has ends of its own
#else
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kRegion = 16 * kLargePage;

std::uint8_t* get(std::size_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= 8 * kLargePage)  // advice: a system may have its own mind
        (void)madvise(data, bytes, MADV_HUGEPAGE);
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

void read_ahead([[maybe_unused]] const std::uint8_t* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto page_of = [page](const std::uint8_t* at) { return reinterpret_cast<std::uintptr_t>(at) / page * page; };
    if (bytes == 0) return;
    const auto is_there = [&](std::size_t at) {
        unsigned char resident = 1;  // stays so where the system does not say, as of files of another user
        return mincore(reinterpret_cast<void*>(page_of(data + at)), 1, &resident) != 0 || resident & 1;
    };
    if (is_there(0) && is_there(bytes / 2) && is_there(bytes - 1)) return;
    const std::uintptr_t first = page_of(data);
    (void)madvise(reinterpret_cast<void*>(first), reinterpret_cast<std::uintptr_t>(data + bytes) - first,
                  MADV_WILLNEED);
#endif
}

// Pieces are placed one after another in the last region, until it is full.
Memory::Memory(std::size_t bytes, bool together) : size_(bytes) {
    if (bytes == 0) return;
    if (!together || bytes > kRegion / 2) {
        data_ = get(bytes);
        return;
    }
    static std::mutex mutex;
    static std::weak_ptr<Memory> last;
    static std::size_t used;
    const std::lock_guard lock(mutex);
    region_ = last.lock();
    if (!region_ || used + bytes > kRegion) {
        region_ = std::make_shared<Memory>(kRegion);
        last = region_;
        used = 0;
    }
    data_ = region_->data_ + used;
    used += (bytes + 63) / 64 * 64;
}

Memory::~Memory() {
    if (data_ && !region_) give_back(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
      region_(std::move(other.region_)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    region_.swap(other.region_);
    return *this;
}

}  // namespace karat

#include "runtime/tiles.h"

#include <cerrno>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace karat {
namespace {

#if defined(__x86_64__)
bool has_tiles() {
    unsigned a, b, c, d;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kBf16) && (d & kTile);
}

bool saves_tiles() {
    unsigned a, b, c, d;
    constexpr unsigned kAsksSystem = 1u << 27, kTiles = 3u << 17;  // OSXSAVE; configuration and data, in XCR0
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kAsksSystem)) return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & kTiles) == kTiles;
}
#else
bool has_tiles() { return false; }
bool saves_tiles() { return false; }
#endif

// ENOSPC where a thread has set too small a stack for its signals, EINVAL before Linux 5.16.
int ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 ? 0 : errno;
#else
    return ENOSYS;
#endif
}

}  // namespace

TileUse try_tiles(const TileSystem& system) {
    if (!system.has()) return {false, ""};
    if (!system.saves()) return {false, "the system does not save tiles (XCR0)"};
    if (const int error = system.ask())
        return {false,
                "the system lets this process use no tiles (arch_prctl: " + std::string(std::strerror(error)) + ")"};
    if (!system.multiply_right()) return {false, "a product of tiles was wrong"};
    return {true, ""};
}

TileSystem this_system(bool (*multiply_right)()) { return {has_tiles, saves_tiles, ask_for_tiles, multiply_right}; }

}  // namespace karat

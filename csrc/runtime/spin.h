// How long a thread spins before it sleeps, and what it does meanwhile: the same in a pool and between ranks.
#pragma once

namespace karat {

inline constexpr int kSpins = 4000;  // some 70 microseconds (Zen 4) to 170 (Intel)

// Tells the core that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace karat

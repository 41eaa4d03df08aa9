// How long a thread spins before it sleeps, and what it does meanwhile: the same in a pool and between ranks.
#pragma once

namespace karat {

// Some 400 microseconds (Zen 5) to 700 (Intel): longer than Python takes between two steps of a sequence (some 200), or
// each step would begin with waking threads.
inline constexpr int kSpins = 16000;

// Tells the core that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace karat

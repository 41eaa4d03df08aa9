// Intel's tiles on processors that have none: an instruction on tiles is not known there, and the system tells the
// process so (SIGILL). A handler then does to the thread's tiles what the processor would have done. So kernels for
// tiles run as they are compiled, their assembly included. What a processor would refuse, such as a product of tiles of
// shapes that do not fit, ends the program.
//
// On a processor with tiles the process asks for them and uses its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulated {

constexpr int kTiles = 8, kTileRows = 16, kRowBytes = 64;

struct State {  // of a thread
    bool configured;
    std::uint8_t rows[kTiles], row_bytes[kTiles];
    std::uint8_t data[kTiles][kTileRows][kRowBytes];
};

// Call it once, before tiles are used. Returns false, and says why, if a processor's own cannot be had.
bool begin();

// Whether this thread's tiles are configured: the system would save them at every switch of threads.
bool in_use();

// Instructions on tiles that were emulated, of all threads.
std::size_t num_instructions();

// From now on a thread gets the signal behind every so many emulated instructions that are not those of a handler.
void interrupt_every(std::size_t instructions, int signal);

// What the system does around a handler of a signal: it begins without tiles, and then the thread goes on with those
// that it had. The first variable of a handler.
class AroundHandler {
public:
    AroundHandler();
    ~AroundHandler();
    AroundHandler(const AroundHandler&) = delete;

private:
    State before_;
};

}  // namespace emulated

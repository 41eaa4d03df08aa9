// Collectives of tensor-parallel ranks: each rank puts its part of a result where the others can read it, and waits for
// theirs.
//
// A plan knows a transport only as a table of C functions. Sums over ranks are the plan's own, along the fixed tree, so
// that no transport can change a bit. `SharedMemory` is the transport between processes of one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

namespace karat {

enum class Outcome : int {
    done,
    abandoned,  // the step was given up: another rank failed
    late,       // others have not done their part within the limit
};

// Collectives are numbered from the beginning of a step; all ranks run the same ones in the same order. Numbers may
// wrap around. A rank's parts of two numbers that follow each other lie in different places; the place of number n is
// used again for n + 2, which no rank reaches before all have read what they wait for in n + 1.
struct Transport {
    void* self = nullptr;
    int rank = 0, size = 1;
    std::size_t slot_bytes = 0, whole_bytes = 0;
    // The numbers of `count` collectives: the first of them.
    std::uint32_t (*reserve)(void* self, std::uint32_t count) = nullptr;
    // Where a rank's part of a collective lies. A rank writes its own slot before `publish`, and reads the others'
    // after `wait`.
    std::uint8_t* (*slot)(void* self, int rank, std::uint32_t number) = nullptr;
    // A result that ranks write together, each its own part of it.
    std::uint8_t* (*whole)(void* self) = nullptr;
    void (*publish)(void* self, std::uint32_t number) = nullptr;
    // Called by any thread with each item of work: progress that a watcher sees, to tell a slow rank from one that
    // hangs.
    void (*stir)(void* self) = nullptr;
    // Returns when all ranks have published `number`, or the step was abandoned. Any number of threads may wait. There
    // is no time limit: the process that watches the ranks abandons a step in which one hangs, or ends the ranks.
    Outcome (*wait)(void* self, std::uint32_t number) = nullptr;
};
using TransportRef = std::shared_ptr<const Transport>;

// A transport over a file that all ranks have mapped: waits spin for a bounded time, then sleep. The process that
// starts the ranks makes the file, `bytes` long and zero, and may map it as rank -1, to watch.
class SharedMemory {
public:
    static constexpr int kMaxRanks = 8;
    static constexpr std::size_t kControlBytes = 4096;  // before the slots; the end is for a number of each rank

    // Bytes of the file. Slots and the whole are rounded up to pages.
    static std::size_t bytes(int size, std::size_t slot_bytes, std::size_t whole_bytes);

    // With `spins` a wait spins for some tens of microseconds before it sleeps. That is right where each rank has a
    // core of its own; elsewhere it keeps the others from working. Throws std::invalid_argument for sizes that make no
    // sense or a file that is too short, std::runtime_error if it cannot be mapped. The descriptor may be closed
    // afterwards.
    SharedMemory(int descriptor, int rank, int size, std::size_t slot_bytes, std::size_t whole_bytes, bool spins);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    // A step begins, whose collectives are numbered from `number` on: above all that went before, also where a step was
    // abandoned midway.
    void begin(std::uint32_t number);
    // Abandons the step that began with `number`: all waits in it end, also those that begin later.
    void abandon(std::uint32_t number);
    bool abandoned() const;
    // Whether a rank's thread sleeps in `wait`.
    bool is_waiting(int rank) const;
    // How often a rank has stirred or published: it changes as long as the rank gets on.
    std::uint32_t progress(int rank) const;

    std::uint32_t reserve(std::uint32_t count);
    std::uint8_t* slot(int rank, std::uint32_t number) const;
    std::uint8_t* whole() const;
    void publish(std::uint32_t number);
    void stir();
    // Waits for at most limit_s seconds. Time in which the process was stopped does not count.
    Outcome wait(std::uint32_t number, double limit_s = std::numeric_limits<double>::infinity());

    int rank() const { return rank_; }
    int size() const { return size_; }
    std::size_t slot_bytes() const { return slot_bytes_; }
    std::size_t whole_bytes() const { return whole_bytes_; }

private:
    struct Line;
    struct Control;
    Control& control() const { return *reinterpret_cast<Control*>(memory_); }

    int rank_, size_, spins_;
    std::size_t slot_bytes_, whole_bytes_, mapped_bytes_;
    std::uint8_t* memory_ = nullptr;
    std::uint32_t begun_ = 0, next_ = 0;  // of the step
};

// The table of functions of a shared memory, which it keeps.
TransportRef transport_of(std::shared_ptr<SharedMemory> memory);

}  // namespace karat

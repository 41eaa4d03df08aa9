#include "group/collective.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "runtime/spin.h"

namespace karat {
namespace {

constexpr std::size_t kPage = 4096;
constexpr double kSleepSeconds = 0.05;  // after which a sleeper looks whether its step was abandoned

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Whether number `a` is at or after number `b`; numbers wrap around.
bool reached(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) >= 0; }

double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Sleeps while `word` is `old`, for a limited time: the seconds. Between processes, so neither std::atomic::wait nor a
// private futex.
double sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t old) {
    const double before = now();
#if defined(__linux__)
    const timespec limit{0, static_cast<long>(1e9 * kSleepSeconds)};
    (void)syscall(SYS_futex, &word, FUTEX_WAIT, old, &limit, nullptr, 0);  // whatever woke it, the caller looks again
#else
    if (word.load() != old) return 0;
    const timespec moment{0, 50000};
    nanosleep(&moment, nullptr);
#endif
    return std::min(now() - before, 2 * kSleepSeconds);  // what is longer was no sleep
}

void wake_all([[maybe_unused]] std::atomic<std::uint32_t>& word) {
#if defined(__linux__)
    (void)syscall(SYS_futex, &word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
#endif
}

}  // namespace

// Each on a cache line of its own: `published` is written by its rank and read by all others.
struct SharedMemory::Line {
    alignas(64) std::atomic<std::uint32_t> published;
    std::atomic<std::uint32_t> sleepers;           // threads that wait for this rank
    alignas(64) std::atomic<std::uint32_t> waits;  // threads of this rank that sleep
    std::atomic<std::uint32_t> progress;
};

struct SharedMemory::Control {
    alignas(64) std::atomic<std::uint32_t> abandoned;  // number that a step began with
    Line lines[kMaxRanks];
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "words are shared between processes");

std::size_t SharedMemory::bytes(int size, std::size_t slot_bytes, std::size_t whole_bytes) {
    constexpr std::size_t kMost = std::size_t{1} << 44;  // of a part: no sum overflows
    if (size < 1 || size > kMaxRanks || slot_bytes == 0 || slot_bytes > kMost || whole_bytes == 0 ||
        whole_bytes > kMost)
        throw std::invalid_argument("shared memory for " + std::to_string(size) + " ranks of " +
                                    std::to_string(slot_bytes) + " bytes and a whole of " +
                                    std::to_string(whole_bytes));
    // The end of the control page is karat.ranks.shared_memory.Tally's.
    static_assert(sizeof(Control) + 8 * kMaxRanks <= kControlBytes && kControlBytes % kPage == 0);
    return kControlBytes + 2 * static_cast<std::size_t>(size) * pages(slot_bytes) + pages(whole_bytes);
}

SharedMemory::SharedMemory(int descriptor, int rank, int size, std::size_t slot_bytes, std::size_t whole_bytes,
                           bool spins)
    : rank_(rank), size_(size), spins_(spins ? kSpins : 1), slot_bytes_(slot_bytes), whole_bytes_(whole_bytes),
      mapped_bytes_(bytes(size, slot_bytes, whole_bytes)) {
    if (rank < -1 || rank >= size)
        throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(size));
    struct stat status;
    if (fstat(descriptor, &status) != 0 || static_cast<std::size_t>(status.st_size) < mapped_bytes_)
        throw std::invalid_argument("a file too short for the shared memory of the ranks");
    void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("the shared memory of the ranks cannot be mapped");
    memory_ = static_cast<std::uint8_t*>(memory);
}

SharedMemory::~SharedMemory() { munmap(memory_, mapped_bytes_); }

void SharedMemory::begin(std::uint32_t number) { begun_ = next_ = number; }

void SharedMemory::abandon(std::uint32_t number) {
    control().abandoned.store(number);
    for (Line& line : control().lines) wake_all(line.published);
}

bool SharedMemory::abandoned() const { return control().abandoned.load() == begun_ && begun_ != 0; }

bool SharedMemory::is_waiting(int rank) const {
    return rank >= 0 && rank < size_ && control().lines[rank].waits.load() > 0;
}

std::uint32_t SharedMemory::progress(int rank) const {
    return rank >= 0 && rank < size_ ? control().lines[rank].progress.load(std::memory_order_relaxed) : 0;
}

void SharedMemory::stir() { control().lines[rank_].progress.fetch_add(1, std::memory_order_relaxed); }

std::uint32_t SharedMemory::reserve(std::uint32_t count) {
    const std::uint32_t first = next_ + 1;  // 0 is what nobody has published
    next_ += count;
    return first;
}

std::uint8_t* SharedMemory::slot(int rank, std::uint32_t number) const {
    const std::size_t index = 2 * static_cast<std::size_t>(rank) + number % 2;
    return memory_ + kControlBytes + index * pages(slot_bytes_);
}

std::uint8_t* SharedMemory::whole() const {
    return memory_ + kControlBytes + 2 * static_cast<std::size_t>(size_) * pages(slot_bytes_);
}

void SharedMemory::publish(std::uint32_t number) {
    Line& line = control().lines[rank_];
    stir();
    line.published.store(number);
    if (line.sleepers.load() > 0) wake_all(line.published);
}

Outcome SharedMemory::wait(std::uint32_t number, double limit_s) {
    Control& all = control();
    double slept_s = 0;
    for (int rank = 0; rank < size_; ++rank) {
        std::atomic<std::uint32_t>& word = all.lines[rank].published;
        int spin = 0;
        while (spin < spins_ && !reached(word.load(std::memory_order_acquire), number)) {
            relax();
            ++spin;
        }
        if (spin < spins_) continue;
        all.lines[rank].sleepers.fetch_add(1);
        all.lines[rank_].waits.fetch_add(1);
        std::uint32_t seen;
        bool given_up = false;
        while (!reached(seen = word.load(), number) && !(given_up = abandoned()) && slept_s < limit_s)
            slept_s += sleep_while(word, seen);
        all.lines[rank_].waits.fetch_sub(1);
        all.lines[rank].sleepers.fetch_sub(1);
        if (given_up) return Outcome::abandoned;
        if (!reached(seen, number)) return Outcome::late;
    }
    return Outcome::done;
}

TransportRef transport_of(std::shared_ptr<SharedMemory> memory) {
    struct Held {
        std::shared_ptr<SharedMemory> memory;
        Transport table;
    };
    auto held = std::make_shared<Held>();
    SharedMemory* self = memory.get();
    held->memory = std::move(memory);
    held->table = {
        .self = self,
        .rank = self->rank(),
        .size = self->size(),
        .slot_bytes = self->slot_bytes(),
        .whole_bytes = self->whole_bytes(),
        .reserve = [](void* s, std::uint32_t count) { return static_cast<SharedMemory*>(s)->reserve(count); },
        .slot = [](void* s, int rank,
                   std::uint32_t number) { return static_cast<SharedMemory*>(s)->slot(rank, number); },
        .whole = [](void* s) { return static_cast<SharedMemory*>(s)->whole(); },
        .publish = [](void* s, std::uint32_t number) { static_cast<SharedMemory*>(s)->publish(number); },
        .stir = [](void* s) { static_cast<SharedMemory*>(s)->stir(); },
        .wait = [](void* s, std::uint32_t number) { return static_cast<SharedMemory*>(s)->wait(number); },
    };
    return {held, &held->table};
}

}  // namespace karat

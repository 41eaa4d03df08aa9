// What ranks exchange through shared memory arrives whole and in order (collective.h). Ranks are threads here, each
// with a mapping of its own.
#include "group/collective.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using karat::Outcome;
using karat::SharedMemory;

constexpr std::size_t kSlot = 256, kWhole = 1024;

int file_for(int size) {
    char name[] = "/tmp/karat-collective-XXXXXX";
    const int descriptor = mkstemp(name);
    CHECK(descriptor >= 0 && unlink(name) == 0);
    CHECK(ftruncate(descriptor, static_cast<off_t>(SharedMemory::bytes(size, kSlot, kWhole))) == 0);
    return descriptor;
}

std::uint32_t sent(int rank, std::uint32_t number) { return number * 2654435761u + static_cast<std::uint32_t>(rank); }

// Each rank's part of every exchange is what that rank put there, also where numbers wrap around.
void parts_arrive(int size, bool spins) {
    const int descriptor = file_for(size);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([=] {
            const auto memory = std::make_shared<SharedMemory>(descriptor, rank, size, kSlot, kWhole, spins);
            const karat::TransportRef table = karat::transport_of(memory);
            std::mt19937 random(static_cast<unsigned>(rank));
            for (const std::uint32_t first : {4096u, 0x80000000u, 0xfffffff0u, 5000u}) {
                memory->begin(first);
                for (int i = 0; i < 60; ++i) {
                    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
                    const std::uint32_t number = table->reserve(table->self, 1);
                    const std::uint32_t value = sent(rank, number);
                    std::memcpy(table->slot(table->self, rank, number), &value, sizeof value);
                    table->publish(table->self, number);
                    CHECK(table->wait(table->self, number) == Outcome::done);
                    for (int other = 0; other < size; ++other) {
                        std::uint32_t seen;
                        std::memcpy(&seen, table->slot(table->self, other, number), sizeof seen);
                        CHECK(seen == sent(other, number));
                    }
                }
            }
        });
    for (std::thread& rank : ranks) rank.join();
    close(descriptor);
}

void a_step_that_is_given_up_ends_the_waiting() {
    const int descriptor = file_for(2);
    SharedMemory rank(descriptor, 0, 2, kSlot, kWhole, true), watcher(descriptor, -1, 2, kSlot, kWhole, false);
    rank.begin(4096);
    const std::uint32_t number = rank.reserve(1);
    rank.publish(number);
    std::thread giving_up([&] {
        while (!watcher.is_waiting(0)) std::this_thread::yield();
        watcher.abandon(4096);
    });
    CHECK(rank.wait(number) == Outcome::abandoned && rank.abandoned());
    giving_up.join();
    CHECK(!watcher.is_waiting(0));
    rank.begin(8192);
    CHECK(rank.wait(number + 4096, 0.01) == Outcome::late && rank.wait(number + 4096, 0) == Outcome::late);
    CHECK(!watcher.is_waiting(0) && !rank.abandoned());
    const std::uint32_t progress = watcher.progress(0);
    rank.stir();
    CHECK(progress > 0 && watcher.progress(0) == progress + 1 && watcher.progress(1) == 0);
    rank.begin(8192);
    CHECK(!rank.abandoned());
    close(descriptor);
}

void what_makes_no_sense_is_refused() {
    const int descriptor = file_for(2);
    CHECK_THROWS(std::invalid_argument, SharedMemory::bytes(9, kSlot, kWhole));
    CHECK_THROWS(std::invalid_argument, SharedMemory::bytes(2, std::size_t{1} << 50, kWhole));
    CHECK_THROWS(std::invalid_argument, SharedMemory(descriptor, 2, 2, kSlot, kWhole, true));
    CHECK_THROWS(std::invalid_argument, SharedMemory(descriptor, 0, 2, 100 * kSlot, kWhole, true));
    close(descriptor);
}

}  // namespace

int main() {
    for (const int size : {2, 4, 8})
        for (const bool spins : {true, false}) parts_arrive(size, spins);
    a_step_that_is_given_up_ends_the_waiting();
    what_makes_no_sense_is_refused();
    return 0;
}

// Whether a process may use Intel's tiles (runtime/tiles.h), on machines that are not this one: what they say is made
// up.
#include "runtime/tiles.h"

#include <cerrno>
#include <string>

#include "check.h"

namespace {

using namespace karat;

std::string asked;
bool has, saves, multiplies;
int error;

TileUse try_on(bool has_them, bool saved, int refusal, bool right) {
    asked = "";
    has = has_them, saves = saved, error = refusal, multiplies = right;
    return try_tiles({[] { return asked += "has ", has; }, [] { return asked += "saves ", saves; },
                      [] { return asked += "ask ", error; }, [] { return asked += "multiply ", multiplies; }});
}

}  // namespace

int main() {
    TileUse use = try_on(true, true, 0, true);
    CHECK(use.granted && use.refusal.empty() && asked == "has saves ask multiply ");
    use = try_on(false, true, 0, true);
    CHECK(!use.granted && use.refusal.empty() && asked == "has ");  // nothing to say of other processors
    use = try_on(true, false, 0, true);
    CHECK(!use.granted && use.refusal.find("XCR0") != std::string::npos && asked == "has saves ");
    use = try_on(true, true, ENOSPC, true);
    // No instruction on tiles: it would end the process.
    CHECK(!use.granted && use.refusal.find("arch_prctl: No space") != std::string::npos && asked == "has saves ask ");
    use = try_on(true, true, 0, false);
    CHECK(!use.granted && use.refusal.find("wrong") != std::string::npos);
    // The machine at hand is asked twice, and says the same.
    const auto never = [] { return true; };
    CHECK(try_tiles(this_system(never)).granted == try_tiles(this_system(never)).granted);
}

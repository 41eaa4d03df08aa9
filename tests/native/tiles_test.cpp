// Whether a process may use Intel's tiles (runtime/tiles.h), on machines that are not this one: what they say is made
// up. What Linux says is made up by a filter of its own, so that the call is the real one.
#include "runtime/tiles.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#if defined(__x86_64__) && defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#endif

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

#if defined(__x86_64__) && defined(__linux__)
// Linux says `answer` to who asks for the registers of tiles, and to all other calls of this kind that the one is
// unknown.
bool make_linux_say(int answer) {
    constexpr unsigned kRequest = 0x1023, kTileData = 18;  // linux/arch/x86/include/uapi/asm/prctl.h
    const auto first_half = [](int argument) {
        return static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * static_cast<unsigned>(argument));
    };
    sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first_half(0)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequest, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first_half(1)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kTileData, 0, 2),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(answer)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENODEV),
    };
    const sock_fprog program{sizeof lines / sizeof *lines, lines};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// In a process of its own, as nothing takes such a filter away.
void check_what_linux_says(int answer) {
    constexpr int kNoFilter = 77;
    const pid_t child = fork();
    if (child == 0) {
        if (!make_linux_say(answer)) _exit(kNoFilter);
        TileSystem system = this_system([] { return true; });
        system.has = system.saves = [] { return true; };
        const TileUse use = try_tiles(system);
        const std::string reason = answer ? "arch_prctl: " + std::string(std::strerror(answer)) : "";
        _exit(use.granted == (answer == 0) && use.refusal.find(reason) != std::string::npos ? 0 : 1);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == kNoFilter) std::puts("SKIPPED: this system takes no filter of calls");
    else CHECK(WEXITSTATUS(status) == 0);
}
#else
void check_what_linux_says(int) {}
#endif

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
    for (const int answer : {0, EPERM, EINVAL, ENOSPC}) check_what_linux_says(answer);
    // The machine at hand is asked twice, and says the same.
    const auto never = [] { return true; };
    CHECK(try_tiles(this_system(never)).granted == try_tiles(this_system(never)).granted);
}

// The interpreter's lock, given away while native code runs.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace karat {

// As nanobind's gil_scoped_release, but for a thread that wants the lock back after the interpreter has ended: Python
// 3.13 and before end such a thread by unwinding its stack, which a destructor turns into the end of the process. Here
// it waits until the process is gone.
class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {  // the unwinding, which is nothing that one could refer to
            for (;;) pause();
        }
    }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* const state_;
};

}  // namespace karat

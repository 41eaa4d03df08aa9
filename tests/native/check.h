// What the native tests state their expectations with.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            std::_Exit(1);                                                               \
        }                                                                                \
    } while (false)

#define CHECK_THROWS(type, expression)                                                              \
    do {                                                                                            \
        bool thrown = false;                                                                        \
        try {                                                                                       \
            (void)(expression);                                                                     \
        } catch (const type&) {                                                                     \
            thrown = true;                                                                          \
        }                                                                                           \
        if (!thrown) {                                                                              \
            std::fprintf(stderr, "%s:%d: no %s from %s\n", __FILE__, __LINE__, #type, #expression); \
            std::_Exit(1);                                                                          \
        }                                                                                           \
    } while (false)

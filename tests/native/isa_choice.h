// Before runtime/isa.cpp in isa_choice: what it asks the compiler about the processor is answered by the program.
#pragma once

bool pretends_to_have(const char* feature);
bool pretends_to_be(const char* maker);

#define __builtin_cpu_supports pretends_to_have
#define __builtin_cpu_is pretends_to_be

// Before the sources of kernels by loops: their table has external linkage, as those that contract/kernels.h declares.
#pragma once

#include "contract/kernels.h"

namespace karat::KARAT_ISA_NAMESPACE {
extern const IntegerKernels integer_kernels;
bool tiles_multiply();
}  // namespace karat::KARAT_ISA_NAMESPACE

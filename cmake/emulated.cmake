# The module karat._emulated: the kernels of a GPU, compiled by the C++ compiler as an emulation (csrc/gpu/simt.h). It is
# for tests and for looking at; an installation has none unless it is asked for.

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-march=native KARAT_HAS_MARCH_NATIVE)  # a fused multiply-add is then one instruction
file(GLOB emulated_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/../csrc/gpu/*.cpp")
# A domain of its own: the classes of the module for NVIDIA GPUs have the same names, and both may be in one process.
nanobind_add_module(_emulated STABLE_ABI NB_STATIC NB_DOMAIN karat_emulated csrc/python/device_module.cpp csrc/formats/packed.cpp
    ${emulated_sources})
target_include_directories(_emulated PRIVATE "${CMAKE_CURRENT_LIST_DIR}/../csrc")
target_compile_definitions(_emulated PRIVATE KARAT_DEVICE_MODULE=_emulated KARAT_ISA_NAMESPACE=gpu KARAT_ONE_LANE)
target_compile_options(_emulated PRIVATE -O2 -ffp-contract=off -fno-fast-math -fno-math-errno -Wall -Wextra
    -Wno-unknown-pragmas $<$<BOOL:${KARAT_HAS_MARCH_NATIVE}>:-march=native>)
install(TARGETS _emulated LIBRARY DESTINATION karat)

# The module karat_cuda._cuda: the kernels of csrc/gpu by nvcc, for each architecture, and a program (PTX) that drivers
# compile for later ones. CUDA's runtime is linked into it; it asks for the driver when it computes.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;100-real;120-real;80-virtual" CACHE STRING "Architectures")
enable_language(CUDA)

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

set(csrc "${CMAKE_CURRENT_LIST_DIR}/../csrc")
file(GLOB kernels CONFIGURE_DEPENDS "${csrc}/gpu/*.cpp")
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CUDA)
# -fmad=false: every fused multiply-add is written as one. Compressed for size: a fifth of what is compressed for speed.
add_library(karat_gpu STATIC ${kernels})
target_include_directories(karat_gpu PRIVATE "${csrc}")
target_compile_definitions(karat_gpu PRIVATE KARAT_ISA_NAMESPACE=gpu KARAT_ONE_LANE)
target_compile_options(karat_gpu PRIVATE -fmad=false -O3 --compress-mode=size)

# A domain of its own: the classes of karat._emulated have the same names, and both may be in one process.
nanobind_add_module(_cuda STABLE_ABI NB_STATIC NB_DOMAIN karat_cuda "${csrc}/python/device_module.cpp" "${csrc}/formats/packed.cpp")
target_include_directories(_cuda PRIVATE "${csrc}")
target_compile_definitions(_cuda PRIVATE KARAT_DEVICE_MODULE=_cuda KARAT_ISA_NAMESPACE=gpu KARAT_ONE_LANE)
target_compile_options(_cuda PRIVATE -O2 -ffp-contract=off -Wall -Wextra)
target_link_libraries(_cuda PRIVATE karat_gpu)
install(TARGETS _cuda LIBRARY DESTINATION karat_cuda)

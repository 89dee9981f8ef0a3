# Builds the ROS packages of this repository that contain Rust: with cargo, in a target folder that they share.
#
#   rgaps_cargo(TARGET ARGUMENT ... [ENVIRONMENT NAME=VALUE ...])    a target of `all` that runs `cargo build --locked` with these arguments
#   RGAPS_BUILT                                                      the folder of the resulting programs and libraries
#
# Shared, because the packages have most dependencies in common. Under colcon, whose build folders are side by side, all use the one of the package
# rgaps. Cargo locks it, so packages that are built at the same time wait for each other instead of building the same crates twice.

set(RGAPS_PROFILE release CACHE STRING "cargo's profile: release or dev")
get_filename_component(BUILD_FOLDER "${CMAKE_CURRENT_BINARY_DIR}" NAME)
get_filename_component(BUILD_BASE "${CMAKE_CURRENT_BINARY_DIR}" DIRECTORY)
if(BUILD_FOLDER STREQUAL PROJECT_NAME)
  set(RGAPS_TARGET_DIR "${BUILD_BASE}/rgaps/cargo" CACHE PATH "where cargo builds")
else()
  set(RGAPS_TARGET_DIR "${CMAKE_CURRENT_BINARY_DIR}/cargo" CACHE PATH "where cargo builds")
endif()

if(RGAPS_PROFILE STREQUAL dev)
  set(RGAPS_BUILT "${RGAPS_TARGET_DIR}/debug")
else()
  set(RGAPS_BUILT "${RGAPS_TARGET_DIR}/${RGAPS_PROFILE}")
endif()

# ROS developers may not have Rust; report that before anything is built.
find_program(CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
if(NOT CARGO)
  message(FATAL_ERROR "cargo was not found: install Rust's stable toolchain with rustup (https://rustup.rs), or put cargo into PATH")
endif()

# A distribution's cargo is often too old, and then fails with obscure errors (about lock files or editions).
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../Cargo.toml" RUST_NEEDED REGEX "^rust-version = ")
string(REGEX MATCH "[0-9.]+" RUST_NEEDED "${RUST_NEEDED}")
execute_process(COMMAND "${CARGO}" --version WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE RUST_FOUND)
if(RUST_FOUND MATCHES "^cargo ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS RUST_NEEDED)
  message(FATAL_ERROR "${CARGO} is ${CMAKE_MATCH_1}, but ${RUST_NEEDED} or later is needed: install Rust's stable toolchain with rustup "
    "(https://rustup.rs) and have it before the other one in PATH")
endif()

function(rgaps_cargo TARGET)
  cmake_parse_arguments(GIVEN "" "" ENVIRONMENT ${ARGN})
  add_custom_target(${TARGET} ALL
    COMMAND "${CMAKE_COMMAND}" -E env ${GIVEN_ENVIRONMENT}
            "${CARGO}" build --locked --profile "${RGAPS_PROFILE}" --target-dir "${RGAPS_TARGET_DIR}" ${GIVEN_UNPARSED_ARGUMENTS}
    WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
    USES_TERMINAL
  )
endfunction()

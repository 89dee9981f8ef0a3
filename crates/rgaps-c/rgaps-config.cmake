# find_package(rgaps CONFIG): targets rgaps::rgaps (shared) and rgaps::rgaps-static, with rgaps.h and rgaps.hpp (C++17).

get_filename_component(RGAPS_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET rgaps::rgaps)
  add_library(rgaps::rgaps SHARED IMPORTED)
  set_target_properties(rgaps::rgaps PROPERTIES
    IMPORTED_LOCATION "${RGAPS_PREFIX}/lib/librgaps.so.2"
    IMPORTED_SONAME librgaps.so.2
    INTERFACE_INCLUDE_DIRECTORIES "${RGAPS_PREFIX}/include"
  )

  add_library(rgaps::rgaps-static STATIC IMPORTED)
  set_target_properties(rgaps::rgaps-static PROPERTIES
    IMPORTED_LOCATION "${RGAPS_PREFIX}/lib/librgaps.a"
    INTERFACE_INCLUDE_DIRECTORIES "${RGAPS_PREFIX}/include"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m"
  )
endif()

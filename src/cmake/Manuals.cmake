# Manual pages and completion for bash, made when programs are installed, of what they say of themselves. Not where they cannot start
# (programs for GPUs on a machine without a driver, or for another processor).
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  message(STATUS "no manual pages: there is no python3 to make them")
  return()
endif()
set(manuals ${PROJECT_BINARY_DIR}/manuals)
list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE started)
list(JOIN started "\" \"" started)
install(CODE "
  file(REMOVE_RECURSE \"${manuals}\")
  execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${PROJECT_SOURCE_DIR}/src/driver/manuals.py\" \"${manuals}\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/annulus\" \"${started}\" RESULT_VARIABLE status ERROR_VARIABLE said)
  if(NOT status EQUAL 0)
    message(STATUS \"no manual pages: \${said}\")
    file(MAKE_DIRECTORY \"${manuals}/man\" \"${manuals}/completions\")
  endif()" COMPONENT programs)
install(DIRECTORY ${manuals}/man DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT programs)
install(DIRECTORY ${manuals}/completions DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion COMPONENT programs)

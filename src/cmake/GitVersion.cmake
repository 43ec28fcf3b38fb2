# Run as a script at every build: -DSOURCE=… -DTEMPLATE=… -DOUTPUT=… -DANNULUS_VERSION=…
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE ANNULUS_GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(ANNULUS_GIT_HASH unknown)
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)

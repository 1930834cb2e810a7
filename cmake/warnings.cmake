# Flags of our own code; they do not leak into LibTorch's headers, which are SYSTEM.
add_library(flotilla_flags INTERFACE)
target_compile_options(flotilla_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${FLOTILLA_WERROR}>>:-Werror>)
if(FLOTILLA_SANITIZE)
  target_compile_options(flotilla_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FLOTILLA_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(flotilla_flags INTERFACE -fsanitize=${FLOTILLA_SANITIZE})
endif()
flotilla_install_library(flotilla_flags flags)  # private to the rooms, but static libraries name it

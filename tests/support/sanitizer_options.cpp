/// Defaults of AddressSanitizer's options for every test: with the stack of a failed check of
/// UndefinedBehaviorSanitizer, which is an illegal instruction.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "detect_leaks=1:handle_sigill=1";
}

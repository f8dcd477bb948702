// The one entry point of the C++ tests; the cases stand beside the code they test.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

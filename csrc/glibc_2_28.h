/* Oldest versions of glibc's functions, so that a library linked with a newer glibc
 * loads with 2.28 and later. Included before all else in each unit of a portable wheel
 * (TRANSDUCE_PORTABLE); auditwheel checks the result. */
#ifndef TRANSDUCE_GLIBC_2_28_H
#define TRANSDUCE_GLIBC_2_28_H

#include <features.h>

#ifdef __GLIBC__

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif

#define USE_OLDEST(name) __asm__(".symver " #name "," #name "@" OLDEST)

/* Before glibc 2.34, these are in libpthread, which Python loads. */
USE_OLDEST(pthread_create);
USE_OLDEST(pthread_detach);
USE_OLDEST(pthread_sigmask);

/* Versions since 2.29 differ in errno only. */
USE_OLDEST(exp);
USE_OLDEST(exp2);
USE_OLDEST(log);
USE_OLDEST(log2);
USE_OLDEST(pow);

#endif

#endif

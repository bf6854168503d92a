/* Included in front of each unit of a portable wheel (TRANSDUCE_PORTABLE): functions in
 * their oldest version, so that the library loads with glibc 2.28 and later although it
 * is linked with a newer one. manylinux_2_28 checks it. */
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

/* In libpthread before 2.34, which Python has loaded. */
USE_OLDEST(pthread_create);
USE_OLDEST(pthread_detach);
USE_OLDEST(pthread_once);
USE_OLDEST(pthread_sigmask);

/* Their versions of 2.29 differ in errno only. */
USE_OLDEST(exp);
USE_OLDEST(exp2);
USE_OLDEST(log);
USE_OLDEST(log2);
USE_OLDEST(pow);

#endif

#endif

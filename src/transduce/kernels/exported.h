/* What is called from without; all else is hidden, so that no library of the same names
   can come between. */
#ifndef TRANSDUCE_EXPORTED_H
#define TRANSDUCE_EXPORTED_H

#define EXPORTED __attribute__((visibility("default")))

#endif

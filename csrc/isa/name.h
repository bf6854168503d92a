/* Names that differ between instruction sets, and linkage of internal functions. */
#ifndef TRANSDUCE_ISA_NAME_H
#define TRANSDUCE_ISA_NAME_H

#define TD_JOIN_(name, isa) name##_##isa
#define TD_JOIN(name, isa) TD_JOIN_(name, isa)
#define TD_NAME(name) TD_JOIN(name, TD_ISA)

#define TD_STRING_(isa) #isa
#define TD_STRING(isa) TD_STRING_(isa)
#define TD_ISA_STRING TD_STRING(TD_ISA)

/* TD_NAME(name) is name_<instruction set>. TD_INTERNAL is the linkage of functions that
 * units share: all units of an instruction set are compiled as one translation unit, in
 * which they are static, so that sets do not collide and calls can be inlined. Editors
 * and analysers compile each unit by itself. */
#ifdef TD_UNITY
#define TD_INTERNAL static
#else
#define TD_INTERNAL
#endif

#endif

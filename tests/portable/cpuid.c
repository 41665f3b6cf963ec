/* Lets a process believe that it runs on another CPU: what its libraries ask `cpuid` and `xgetbv` is
 * answered from a file. Every other instruction runs as it is, at full speed.
 *
 *   cc -shared -fPIC -O2 -o cpuid.so cpuid.c
 *   LD_AUDIT=cpuid.so CPUID_PLACES=… CPUID_ANSWERS=… python …
 *
 * The loader calls `la_objopen` for each library once it is mapped and before any of its code runs.
 * Both instructions become breakpoints there, and the handler answers.
 *
 * CPUID_PLACES: lines "NAME ADDRESS LENGTH", as cpuid.py finds them; CPUID_ANSWERS: lines
 * "LEAF SUBLEAF EAX EBX ECX EDX"; a subleaf of -1 is any.
 */

#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST 4096

static struct answer {
  unsigned leaf, sub, registers[4];
} answers[MOST];
static struct place {
  char name[96];
  unsigned long address;
  int length;
} places[MOST];
static int answer_count, place_count;

static void complain(const char *what) {
  fprintf(stderr, "cpuid.c: %s\n", what);
  _exit(99);
}

static const unsigned *answer(unsigned leaf, unsigned sub) {
  static const unsigned nothing[4];
  for (int n = 0; n < answer_count; n++)
    if (answers[n].leaf == leaf && (answers[n].sub == sub || answers[n].sub == ~0u))
      return answers[n].registers;
  return nothing;
}

/* A breakpoint leaves the instruction pointer behind itself, at the rest of what it replaced: a `nop`
 * of one byte for `cpuid`, of two for `xgetbv`. */
static void asked(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  (void)number, (void)info;
  if (*(unsigned char *)registers[REG_RIP] == 0x90) {
    const unsigned *found = answer((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX]);
    registers[REG_RAX] = found[0];
    registers[REG_RBX] = found[1];
    registers[REG_RCX] = found[2];
    registers[REG_RDX] = found[3];
  } else { /* which registers the system saves: all that the CPU has */
    registers[REG_RAX] = answer(0xd, 0)[0];
    registers[REG_RDX] = 0;
  }
}

unsigned la_version(unsigned version) {
  struct sigaction action = {.sa_sigaction = asked, .sa_flags = SA_SIGINFO | SA_NODEFER};
  const char *names[] = {getenv("CPUID_PLACES"), getenv("CPUID_ANSWERS")};
  FILE *file = names[0] ? fopen(names[0], "r") : NULL;
  if (file == NULL) complain("no file of places");
  for (struct place *p = places; place_count < MOST; p++, place_count++)
    if (fscanf(file, "%95s %lx %d", p->name, &p->address, &p->length) != 3) break;
  if (!feof(file)) complain("a place that cannot be read");
  fclose(file);
  file = names[1] ? fopen(names[1], "r") : NULL;
  if (file == NULL) complain("no file of answers");
  for (struct answer *a = answers; answer_count < MOST; a++, answer_count++) {
    int sub;
    unsigned *r = a->registers;
    if (fscanf(file, "%x %d %x %x %x %x", &a->leaf, &sub, r, r + 1, r + 2, r + 3) != 6) break;
    a->sub = (unsigned)sub;
  }
  if (!feof(file)) complain("an answer that cannot be read");
  fclose(file);
  if (!place_count || !answer_count) complain("nothing to answer");
  if (sigaction(SIGTRAP, &action, NULL)) complain("cannot answer");
  return version;
}

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
  const char *slash = strrchr(map->l_name, '/');
  const char *name = slash ? slash + 1 : map->l_name;
  unsigned long page = (unsigned long)sysconf(_SC_PAGESIZE);
  (void)space, (void)cookie;
  for (int n = 0; n < place_count; n++) {
    if (strcmp(places[n].name, name)) continue;
    unsigned char *at = (unsigned char *)(map->l_addr + places[n].address);
    unsigned long first = (unsigned long)at & ~(page - 1);
    unsigned long size = (unsigned long)at + (unsigned long)places[n].length - first;
    if (mprotect((void *)first, size, PROT_READ | PROT_WRITE | PROT_EXEC)) complain("cannot write");
    if (at[0] != 0x0f || (at[1] != 0xa2 && at[1] != 0x01)) complain("another library than was read");
    memcpy(at, places[n].length == 2 ? "\xcc\x90" : "\xcc\x66\x90", (size_t)places[n].length);
    if (mprotect((void *)first, size, PROT_READ | PROT_EXEC)) complain("cannot write");
  }
  return 0;
}

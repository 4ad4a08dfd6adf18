// A library for LD_PRELOAD that makes a server listen on the loopback address instead of on all addresses.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>

int bind(int socket, const struct sockaddr *address, socklen_t length) {
  int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  if (address->sa_family != AF_INET || length < sizeof(struct sockaddr_in)) return next(socket, address, length);
  struct sockaddr_in loopback = *(const struct sockaddr_in *)address;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return next(socket, (const struct sockaddr *)&loopback, sizeof loopback);
}

// SPDX-License-Identifier: Apache-2.0
//
// A library to preload into the programs of smc-tools: netlink sockets become
// unix sockets connected to the address in SMCR_SHIM, and the cache file of
// smcr stats becomes the one in SMCR_STATS_CACHE. TestOriginal uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NEXT(ret, name, ...)                                  \
	static ret (*next)(__VA_ARGS__);                      \
	if (!next)                                            \
		next = (ret(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static char shimmed[1024];

static int ours(int fd) { return fd >= 0 && fd < (int)sizeof(shimmed) && shimmed[fd]; }

int socket(int domain, int type, int protocol)
{
	NEXT(int, "socket", int, int, int);
	if (domain != AF_NETLINK)
		return next(domain, type, protocol);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	strncpy(addr.sun_path, getenv("SMCR_SHIM"), sizeof(addr.sun_path) - 1);
	int fd = next(AF_UNIX, SOCK_SEQPACKET | (type & SOCK_CLOEXEC), 0);
	if (fd < 0 || fd >= (int)sizeof(shimmed) || connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
		return -1;
	shimmed[fd] = 1;
	return fd;
}

int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	NEXT(int, "bind", int, const struct sockaddr *, socklen_t);
	return ours(fd) ? 0 : next(fd, addr, len);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	NEXT(int, "setsockopt", int, int, int, const void *, socklen_t);
	return ours(fd) ? 0 : next(fd, level, name, value, len);
}

int getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	NEXT(int, "getsockname", int, struct sockaddr *, socklen_t *);
	if (!ours(fd))
		return next(fd, addr, len);
	struct sockaddr_nl nl = {.nl_family = AF_NETLINK, .nl_pid = getpid()};
	memcpy(addr, &nl, sizeof(nl));
	*len = sizeof(nl);
	return 0;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	NEXT(ssize_t, "sendmsg", int, const struct msghdr *, int);
	struct msghdr plain = *msg;
	if (ours(fd)) {
		plain.msg_name = plain.msg_control = NULL;
		plain.msg_namelen = plain.msg_controllen = 0;
	}
	return next(fd, &plain, flags);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	NEXT(ssize_t, "recvmsg", int, struct msghdr *, int);
	if (!ours(fd))
		return next(fd, msg, flags);
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	void *name = msg->msg_name;
	msg->msg_name = NULL;
	ssize_t n = next(fd, msg, flags);
	msg->msg_name = name;
	if (name) {
		memcpy(name, &kernel, sizeof(kernel));
		msg->msg_namelen = sizeof(kernel);
	}
	return n;
}

static const char *moved(const char *path)
{
	return strncmp(path, "/tmp/.smcstats", 14) ? path : getenv("SMCR_STATS_CACHE");
}

int open(const char *path, int flags, ...)
{
	NEXT(int, "open", const char *, int, ...);
	va_list args;
	va_start(args, flags);
	int mode = va_arg(args, int);
	va_end(args);
	return next(moved(path), flags, mode);
}

int unlink(const char *path)
{
	NEXT(int, "unlink", const char *);
	return path ? next(moved(path)) : -1;
}

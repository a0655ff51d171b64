// SPDX-License-Identifier: Apache-2.0

// Package epollset has an epoll set that waits in the runtime's poller, for
// descriptors that cannot be there themselves: that would change O_NONBLOCK, which
// belongs to somebody else, too. One goroutine, and no thread, waits for all of them.
//
// A Set is safe for concurrent use. It needs no privileges.
package epollset

// SPDX-License-Identifier: Apache-2.0

// Package epollset waits for events of descriptors that must not be in the poller of the Go
// runtime, because the poller needs O_NONBLOCK and other processes share this flag. The
// descriptors are in an epoll set, and the set is in the poller. So one goroutine, and no
// thread, waits for all of them.
//
// A Set is safe for concurrent use. It needs no privileges.
package epollset

// SPDX-License-Identifier: Apache-2.0

// The compiler accepts functions without a body, which epoll.go links to the
// runtime's, only in a package with a file such as this one.

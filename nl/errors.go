// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"smcr/internal/printable"
)

// ErrNoBackend means that there is no SMC stack: the kernel has no SMC, or no stack
// runs in user space in this network namespace.
var ErrNoBackend = errors.New("nl: no such SMC stack")

// ErrNotSupported means that the stack does not have an operation.
var ErrNotSupported = errors.New("nl: operation not supported by this SMC stack")

// ErrInterrupted means that a table changed each time it was read, so there is no
// consistent answer.
var ErrInterrupted = errors.New("nl: table changed while it was read")

// An OpError is the error of a [Control] operation. With [errors.Is] it matches
//
//   - os.ErrNotExist for ENOENT, ENODEV and ENXIO,
//   - os.ErrExist for EEXIST,
//   - os.ErrPermission for EPERM and EACCES,
//   - os.ErrInvalid for EINVAL,
//   - ErrNotSupported for EOPNOTSUPP,
//
// and, through Unwrap, the errno itself.
type OpError struct {
	Op      string // the operation, such as "list link groups"
	Backend string // the stack: "kernel", "user", or the address of a socket
	Object  string // the object, such as a pnetid; may be empty
	Err     error  // the cause, often a syscall.Errno
	ExtAck  string // explanation that the stack has sent; may be empty
}

// Error returns one line that names the operation, its object, the stack and the
// cause.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("nl: ")
	b.WriteString(e.Op)
	if e.Object != "" {
		b.WriteString(" " + printable.Line(e.Object))
	}
	if e.Backend != "" {
		b.WriteString(" (" + e.Backend + ")")
	}
	b.WriteString(": ")
	if e.ExtAck != "" {
		b.WriteString(printable.Line(e.ExtAck) + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel for the errno; see [OpError].
func (e *OpError) Is(target error) bool {
	var errno syscall.Errno
	if !errors.As(e.Err, &errno) {
		return false
	}
	switch target {
	case os.ErrNotExist:
		return errno == syscall.ENODEV || errno == syscall.ENXIO
	case os.ErrInvalid:
		return errno == syscall.EINVAL
	case ErrNotSupported:
		return errno == syscall.EOPNOTSUPP
	}
	// ENOENT, EEXIST, EPERM and EACCES are matched by syscall.Errno.Is.
	return false
}

// Timeout reports whether the stack did not answer in time.
func (e *OpError) Timeout() bool {
	return errors.Is(e.Err, os.ErrDeadlineExceeded) || errors.Is(e.Err, syscall.ETIMEDOUT)
}

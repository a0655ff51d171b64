// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"errors"
	"os"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/place"
	"smcr/internal/plain"
	"smcr/nl"
)

// ErrorText returns the text that the netlink library of smc-tools has for an
// error, or where it has none the text of smcr.
func ErrorText(err error) string {
	var errno syscall.Errno
	var said *cmdutil.Error
	var untrusted *place.UntrustedError
	switch {
	case errors.Is(err, ErrNoModule):
		return ErrNoModule.Error()
	case errors.As(err, &untrusted):
		return untrusted.Error()
	case errors.As(err, &said):
		return said.Text
	case errors.Is(err, nl.ErrNoBackend):
		return ErrNoModule.Error()
	case errors.Is(err, nl.ErrInterrupted):
		return "Dump inconsistency detected, interrupted"
	case errors.As(err, &errno):
		return errnoText(errno)
	case errors.Is(err, nl.ErrNotSupported):
		return errnoText(syscall.EOPNOTSUPP)
	case errors.Is(err, os.ErrNotExist):
		return errnoText(syscall.ENOENT)
	case errors.Is(err, os.ErrExist):
		return errnoText(syscall.EEXIST)
	case errors.Is(err, os.ErrPermission):
		return errnoText(syscall.EPERM)
	case errors.Is(err, os.ErrInvalid):
		return errnoText(syscall.EINVAL)
	}
	return plain.Text(err.Error())
}

// IsErrno reports whether err stems from one of the errnos.
func IsErrno(err error, of ...syscall.Errno) bool {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		for _, x := range of {
			if errno == x {
				return true
			}
		}
	}
	return false
}

// errnoText maps an errno as libnl does, which has fewer errors than there are
// errnos.
func errnoText(errno syscall.Errno) string {
	switch errno {
	case syscall.EBADF, syscall.ENOTSOCK:
		return "Bad socket"
	case syscall.EEXIST, syscall.EADDRINUSE:
		return "Object exists"
	case syscall.EADDRNOTAVAIL:
		return "Invalid address for specified address family"
	case syscall.ENOENT, syscall.ESRCH:
		return "Object not found"
	case syscall.EINTR:
		return "Interrupted system call"
	case syscall.EAGAIN:
		return "Try again"
	case syscall.EINVAL, syscall.ENOPROTOOPT, syscall.EFAULT:
		return "Invalid input data or parameter"
	case syscall.EACCES:
		return "No Access"
	case syscall.ENOMEM, syscall.ENOBUFS:
		return "Out of memory"
	case syscall.EAFNOSUPPORT:
		return "Address family not supported"
	case syscall.EPROTONOSUPPORT:
		return "Protocol mismatch"
	case syscall.EOPNOTSUPP:
		return "Operation not supported"
	case syscall.EPERM:
		return "Operation not permitted"
	case syscall.EBUSY:
		return "Object busy"
	case syscall.ERANGE:
		return "Input data out of range"
	case syscall.ENODEV:
		return "No such device"
	}
	return "Unspecific failure"
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openPidfd opens a pidfd for the thread tid, or for its process on kernels
// before 6.9.
func openPidfd(tid int) (int, error) {
	fd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	tgid, err := tgidOf(tid)
	if err != nil {
		return -1, err
	}
	return unix.PidfdOpen(tgid, 0)
}

// tgidOf returns the process id of thread tid.
func tgidOf(tid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, err
	}
	return statusInt(b, "Tgid:")
}

// statusValue returns what stands behind the key in /proc/PID/status.
func statusValue(status []byte, key string) ([]byte, error) {
	for line := range bytes.Lines(status) {
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return bytes.TrimSpace(v), nil
		}
	}
	return nil, fmt.Errorf("launch: no %s in status", key)
}

// statusInt returns the number of a line of /proc/PID/status.
func statusInt(status []byte, key string) (int, error) {
	v, err := statusValue(status, key)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(v))
}

// Columns of Uid and Gid in a process's status.
const (
	idReal = iota
	idEffective
	_
	idFS
)

// statusID returns one column of the line Uid or Gid of /proc/PID/status.
func statusID(status []byte, key string, column int) (int, error) {
	v, err := statusValue(status, key)
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(v)
	if len(f) != 4 {
		return 0, fmt.Errorf("launch: no %s in status", key)
	}
	return strconv.Atoi(string(f[column]))
}

// fsIDs returns the user and the group with which a process makes files.
func fsIDs(status []byte) (uid, gid int, err error) {
	uid, err = statusID(status, "Uid:", idFS)
	if err == nil {
		gid, err = statusID(status, "Gid:", idFS)
	}
	return uid, gid, err
}

// userIDs returns the real and the effective user of a process.
func userIDs(status []byte) (ruid, euid int, err error) {
	ruid, err = statusID(status, "Uid:", idReal)
	if err == nil {
		euid, err = statusID(status, "Uid:", idEffective)
	}
	return ruid, euid, err
}

// pending reports whether a signal is about to interrupt thread tid.
func pending(tid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return false
	}
	own, shared, blocked := statusMask(b, "SigPnd:"), statusMask(b, "ShdPnd:"), statusMask(b, "SigBlk:")
	return (own|shared)&^blocked != 0
}

// statusMask returns a set of signals of /proc/PID/status, empty if there is none.
func statusMask(status []byte, key string) uint64 {
	v, err := statusValue(status, key)
	if err != nil {
		return 0
	}
	m, err := strconv.ParseUint(string(v), 16, 64)
	if err != nil {
		return 0
	}
	return m
}

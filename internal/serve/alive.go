// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
)

// errHidden means that this process may not see the namespaces of other users' processes. It
// must not remove what belongs to a namespace then, because that namespace may exist.
var errHidden = errors.New("the namespaces of other processes are hidden: no CAP_SYS_PTRACE")

// namespaces returns the inode numbers of the network namespaces that threads use, or that are
// mounted (ip netns, containers) in the mount namespace of any process. Those that somebody holds by
// a descriptor alone are not in it. The error is errHidden if this process does not have the
// capability to see them.
func namespaces() (map[uint64]bool, error) {
	if have, err := confine.Effective(); err != nil {
		return nil, err
	} else if !have.Has(unix.CAP_SYS_PTRACE) {
		return nil, errHidden
	}
	alive := make(map[uint64]bool)
	threads, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	for _, name := range append(threads, "/proc/thread-self/ns/net") {
		link, err := os.Readlink(name)
		if err != nil {
			continue // the thread has ended, or the system hides it even from root
		}
		if ino, ok := parseNamespace(link); ok {
			alive[ino] = true
		}
	}
	if err := addMounted(alive, "/proc/thread-self/mountinfo"); err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	read := make(map[string]bool) // mount namespaces
	for _, name := range processes {
		link, err := os.Readlink(name)
		if err != nil || read[link] {
			continue
		}
		// The process may have ended, or may end while its mounts are read. Then the next one of the
		// same mount namespace has them.
		read[link] = addMounted(alive, strings.TrimSuffix(name, "ns/mnt")+"mountinfo") == nil
	}
	return alive, nil
}

// addMounted adds the network namespaces that are mounted according to a file mountinfo of procfs.
func addMounted(alive map[uint64]bool, mountinfo string) error {
	mounts, err := os.Open(mountinfo)
	if err != nil {
		return err
	}
	defer mounts.Close()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		// ID, parent's ID, device, root: for a namespace, the text of its link.
		if f := strings.Fields(lines.Text()); len(f) > 3 {
			if ino, ok := parseNamespace(f[3]); ok {
				alive[ino] = true
			}
		}
	}
	return lines.Err()
}

// parseNamespace reads "net:[4026531840]".
func parseNamespace(s string) (ino uint64, ok bool) {
	digits, pre := strings.CutPrefix(s, "net:[")
	digits, post := strings.CutSuffix(digits, "]")
	ino, err := strconv.ParseUint(digits, 10, 64)
	return ino, pre && post && err == nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
)

// squat tries to be the stack, until the program is killed.
func squat() error {
	dir, err := place.Dir()
	if err != nil {
		return err
	}
	top, lock := filepath.Dir(dir), filepath.Join(dir, "lock")
	tries := map[string]func() error{
		"@smcr/nl":  func() error { return listen("@smcr/nl") },
		"own place": ownPlace,
		top:         func() error { return os.Mkdir(top, 0o777) },
		dir:         func() error { return os.Mkdir(dir, 0o777) },
		top + " as a link": func() error {
			return errors.Join(os.Rename(top, top+".old"), os.Symlink(os.Getenv("XDG_RUNTIME_DIR"), top))
		},
		dir + " as a link":   func() error { return os.Symlink(os.Getenv("XDG_RUNTIME_DIR"), dir) },
		"the mode of " + dir: func() error { return os.Chmod(dir, 0o777) },
		lock: func() error {
			f, err := os.Open(lock)
			if err != nil {
				return err
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				fmt.Println("took a descriptor of", lock)
				return err
			}
			held = append(held, f)
			return nil
		},
		"the lock away": func() error { return os.Remove(lock) },
	}
	path := filepath.Join(dir, place.Commands)
	tries[path] = func() error { return listen(path) }
	tries[path+" away"] = func() error { return os.Remove(path) }
	for said := false; ; time.Sleep(time.Millisecond) {
		for what, try := range tries {
			if try() == nil {
				fmt.Println("took", what)
				delete(tries, what)
			}
		}
		if !said {
			fmt.Println("squatting")
		}
		said = true
	}
}

// held has objects that the garbage collector must not close.
var held []any

func listen(address string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: address, Net: "unixpacket"})
	if err == nil {
		held = append(held, l)
	}
	return err
}

// ownPlace takes the place that a stack of this user may have.
func ownPlace() error {
	c, err := place.Take()
	if err != nil {
		return err
	}
	held = append(held, c)
	_, err = c.Listen(place.Commands)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit statuses of a program that could not be started, as shells have them.
const (
	exitNotFound = 127 // there is no such program
	// ExitNotExecutable means that the program cannot be executed.
	ExitNotExecutable = 126
)

// Self is the executable of this process, also if the file was replaced.
const Self = "/proc/self/exe"

// StartError means that a program could not be started.
type StartError struct {
	// Program is its name.
	Program string
	// Err is the reason.
	Err error
}

// Error returns the program and the reason.
func (e *StartError) Error() string { return fmt.Sprintf("program: %s: %v", e.Program, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// ExitStatus returns the exit status that a shell would return: 127 if there is no such program, and 126 otherwise.
func (e *StartError) ExitStatus() int {
	if errors.Is(e.Err, fs.ErrNotExist) || errors.Is(e.Err, exec.ErrNotFound) {
		return exitNotFound
	}
	return ExitNotExecutable
}

// Find returns the path of a program, which it looks for in PATH unless the name has a slash, as execvp does. The error is a
// *StartError.
func Find(name string) (path string, err error) {
	if path, err = find(name); err != nil {
		return "", &StartError{Program: name, Err: err}
	}
	return path, nil
}

func find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	path, ok := os.LookupEnv("PATH")
	if !ok {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	err := exec.ErrNotFound
	for _, d := range filepath.SplitList(path) {
		full := filepath.Join(d, name)
		if !strings.Contains(full, "/") {
			full = "./" + full
		}
		e := executable(full)
		if e == nil {
			return full, nil
		}
		if errors.Is(e, fs.ErrPermission) {
			err = e
		}
	}
	return "", err
}

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("is a directory: %w", fs.ErrPermission)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "exec", Path: path, Err: err}
	}
	return nil
}

// Exec replaces this process by a program. The thread that calls it has what the program is to have of a thread. It returns only
// on failure, with a *StartError.
func Exec(path string, argv, env []string) error {
	// The Go runtime does not keep which signals were ignored, except SIGHUP and SIGINT. systemd ignores SIGPIPE for services,
	// unless they say otherwise.
	if slices.Contains(env, "SYSTEMD_EXEC_PID="+strconv.Itoa(os.Getpid())) {
		signal.Ignore(unix.SIGPIPE)
	}
	return &StartError{Program: argv[0], Err: syscall.Exec(path, argv, env)}
}

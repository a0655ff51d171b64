// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"smcr/nl"
	"smcr/nl/nltest"
)

// serveRows answers like a stack with this number of link groups and connections, until
// the end of standard input. It writes to standard output when it is ready.
func serveRows(rows int, socket string) error {
	l, err := nl.ListenUnix(socket)
	if err != nil {
		return err
	}
	s := nl.NewServer(nltest.NewFake(nltest.Rows(rows)), nl.ServerConfig{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.Close(), <-done)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"smcr/internal/testing/faults"
)

// The lines of the document around the table.
const (
	begin = "<!-- table: begin -->\n"
	end   = "<!-- table: end -->\n"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: table RESULTS DOCUMENT")
	}
	in, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer in.Close()
	rows, err := faults.Read(in)
	if err != nil {
		return err
	}
	document, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	replaced, err := replace(string(document), faults.Table(rows))
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	return os.WriteFile(args[1], []byte(replaced), 0o644)
}

var errNoMarks = errors.New("the lines around the table are missing")

// replace puts the table between the lines of a document that mark it.
func replace(document, table string) (string, error) {
	head, rest, ok := strings.Cut(document, begin)
	if !ok {
		return "", errNoMarks
	}
	_, tail, ok := strings.Cut(rest, end)
	if !ok {
		return "", errNoMarks
	}
	return head + begin + "\n" + table + "\n" + end + tail, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"smcr/internal/testing/mutants/mutate"
)

// survivors are the mutants of a package that are known to survive. The file names them
// by function and change, which stay when lines move:
//
//	# comment
//	Type.Method
//		m.MTU > 15 → >=
//			Equivalent: why nothing can be seen of it
//
// A reason belongs to all changes above it that have none. A reason that begins with
// "Equivalent: " shows that no test can kill the mutant. Any other reason says why none
// does.
type survivors struct {
	file    string
	reasons map[[2]string]string // by function and change
	order   [][2]string
}

// equivalent begins the reason of a mutant that does what the source does.
const equivalent = "Equivalent: "

// readSurvivors reads a file. One that does not exist is empty.
func readSurvivors(name string) (*survivors, error) {
	s := &survivors{file: name, reasons: map[[2]string]string{}}
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fn := ""
	var open [][2]string
	for i, line := range strings.Split(string(b), "\n") {
		text := strings.TrimSpace(line)
		fail := func(what string) error { return fmt.Errorf("%s:%d: %s", name, i+1, what) }
		switch {
		case text == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "\t\t"):
			if len(open) == 0 {
				return nil, fail("a reason without a change")
			}
			for _, key := range open {
				s.reasons[key] = text
			}
			open = nil
		case strings.HasPrefix(line, "\t"):
			key := [2]string{fn, text}
			if fn == "" {
				return nil, fail("a change without a function")
			}
			open = append(open, key)
			s.order = append(s.order, key)
		default:
			if len(open) > 0 {
				return nil, fail("the change before has no reason")
			}
			fn = text
		}
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("%s: the last change has no reason", name)
	}
	return s, nil
}

func (s *survivors) reason(fn, change string) string { return s.reasons[[2]string{place(fn), change}] }

// place is how a file names a function. The initial values of variables have none.
func place(fn string) string {
	if fn == "" {
		return "var"
	}
	return fn
}

// unknown returns the entries that name none of the mutants of the package.
func (s *survivors) unknown(mutants []mutate.Mutant) []string {
	exist := map[[2]string]bool{}
	for _, m := range mutants {
		exist[[2]string{place(m.Func), m.Change}] = true
	}
	var unknown []string
	for _, key := range s.order {
		if !exist[key] {
			unknown = append(unknown, key[0]+": "+key[1])
		}
	}
	return unknown
}

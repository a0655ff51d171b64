// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"smcr/internal/testing/field"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "smcrfield:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (good bool, err error) {
	flags := flag.NewFlagSet("smcrfield", flag.ContinueOnError)
	smcr := flags.String("smcr", "bin/smcr", "the program under test")
	pattern := flags.String("cases", "", "run only the cases whose CASE/VARIANT matches the regular expression")
	names := flags.String("modes", "", "run only these modes, separated by commas: "+strings.Join(modeNames(), ", "))
	quick := flags.Bool("quick", false, "run only the variants of the short form")
	rounds := flags.Int("rounds", 1, "run everything so often")
	verbose := flags.Bool("v", false, "print all output of both sides")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	only, err := regexp.Compile(*pattern)
	if err != nil {
		return false, err
	}
	for n := range strings.SplitSeq(*names, ",") {
		if n != "" && !slices.Contains(modeNames(), n) {
			return false, fmt.Errorf("no mode %q: there are %s", n, strings.Join(modeNames(), ", "))
		}
	}
	f, err := field.New(*smcr)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	good = true
	for range *rounds {
		var results []*field.Result
		for i := range field.Cases {
			c := &field.Cases[i]
			for _, v := range c.Variants {
				if !only.MatchString(c.Name+"/"+v) || *quick && !slices.Contains(c.Quick, v) {
					continue
				}
				for _, m := range field.Modes {
					if *names != "" && !slices.Contains(strings.Split(*names, ","), m.Name) {
						continue
					}
					r, err := f.Run(ctx, c, v, m)
					if err != nil {
						return false, err
					}
					if !r.Good() {
						good = false
						fmt.Fprintf(os.Stderr, "BAD %s %s/%s\n", m.Name, c.Name, v)
					}
					if *verbose {
						fmt.Fprintln(os.Stderr, r.Log)
					}
					results = append(results, r)
				}
			}
		}
		if len(results) == 0 {
			return false, fmt.Errorf("no case matches %q", *pattern)
		}
		fmt.Print(field.Table(results))
	}
	return good, nil
}

func modeNames() []string {
	var names []string
	for _, m := range field.Modes {
		names = append(names, m.Name)
	}
	return names
}

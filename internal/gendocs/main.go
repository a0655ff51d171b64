// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := write(dir); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

// write replaces the generated files under dir.
func write(dir string) error {
	files, err := generate()
	if err != nil {
		return err
	}
	for _, sub := range []string{"man", "completions"} {
		if err := os.RemoveAll(filepath.Join(dir, sub)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// noDate is how a page shows the zero time.
const noDate = `"Jan 0001"`

// generate returns the generated files by their names.
func generate() (map[string][]byte, error) {
	streams, _, _, _ := iostreams.Test()
	root := cli.NewRoot(&cmdutil.Factory{IO: streams, Version: "unknown", Backend: "auto"})
	root.InitDefaultHelpCmd()
	files := make(map[string][]byte)
	if err := pages(root, files); err != nil {
		return nil, err
	}
	for name, gen := range map[string]func(*bytes.Buffer) error{
		"smcr.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"_smcr":     func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"smcr.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
	} {
		var b bytes.Buffer
		if err := gen(&b); err != nil {
			return nil, err
		}
		files[filepath.Join("completions", name)] = b.Bytes()
	}
	return files, nil
}

// pages adds the manual page of a command and those of its subcommands. The date
// is left out: pages change with the commands only.
func pages(cmd *cobra.Command, files map[string][]byte) error {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() && c.Name() != "help" {
			if err := pages(c, files); err != nil {
				return err
			}
		}
	}
	cmd.DisableAutoGenTag = true
	header := &doc.GenManHeader{
		Title:   strings.ToUpper(strings.ReplaceAll(cmd.CommandPath(), " ", "-")),
		Section: "8",
		Source:  "smcr",
		Manual:  "Shared Memory Communications",
		Date:    new(time.Time),
	}
	var b bytes.Buffer
	if err := doc.GenMan(cmd, header, &b); err != nil {
		return err
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
	page := bytes.Replace(b.Bytes(), []byte(noDate), []byte(`""`), 1)
	files[filepath.Join("man", name)] = page
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"

	"github.com/spf13/cobra"
)

//go:embed pages
var texts embed.FS

//go:embed troubleshooting.md.txt
var troubleshootingIntro []byte

func main() {
	dir, err := directory(os.Args[1:])
	if err == nil {
		err = write(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

// directory returns the folder that the command line names. There are no
// options: what looks like one is not taken for a folder to write to.
func directory(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return ".", nil
	case len(args) > 1 || strings.HasPrefix(args[0], "-"):
		return "", fmt.Errorf("cannot take %q: the one argument is the root of the module, by default the current directory", args)
	default:
		return args[0], nil
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

// newRoot returns the command smcr as the pages show it.
func newRoot() *cobra.Command {
	streams, _, _, _ := cmdutil.MemoryStreams()
	root := cli.NewRoot(&cmdutil.Factory{IO: streams, Version: "unknown", Backend: "auto"})
	root.InitDefaultHelpCmd()
	return root
}

// generate returns the generated files by their names.
func generate() (map[string][]byte, error) {
	root := newRoot()
	files := make(map[string][]byte)
	own, err := readTexts()
	if err != nil {
		return nil, err
	}
	for _, cmd := range append(nouns(root), root) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		page, err := commandPage(cmd, own[name+".8"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[filepath.Join("man", name+".8")] = page
		delete(own, name+".8")
	}
	for name, sections := range own {
		page, err := textPage(name, sections)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[filepath.Join("man", name)] = page
		tool, section := cutSection(name)
		if section == "8" {
			files[filepath.Join("completions", tool+".bash")] = bashCompletion(tool, sections)
		}
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
	files[filepath.Join("docs", "troubleshooting.md")] = troubleshooting(troubleshootingIntro)
	return files, nil
}

// readTexts returns the texts by the names of their pages.
func readTexts() (map[string][]section, error) {
	entries, err := fs.ReadDir(texts, "pages")
	if err != nil {
		return nil, err
	}
	out := make(map[string][]section)
	for _, e := range entries {
		b, err := fs.ReadFile(texts, "pages/"+e.Name())
		if err != nil {
			return nil, err
		}
		sections, err := parseText(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out[strings.TrimSuffix(e.Name(), ".txt")] = sections
	}
	return out, nil
}

// nouns returns the commands that have a page, which are those directly below
// the root.
func nouns(root *cobra.Command) []*cobra.Command {
	return visible(root)
}

// visible returns the subcommands that a user sees, without help.
func visible(cmd *cobra.Command) (list []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() && c.Name() != "help" {
			list = append(list, c)
		}
	}
	return list
}

// below returns the subcommands of a command that a user sees, each followed by
// its own.
func below(cmd *cobra.Command) (list []*cobra.Command) {
	for _, c := range visible(cmd) {
		list = append(append(list, c), below(c)...)
	}
	return list
}

// cutSection splits smcr.yaml.5 into name and section of the manual.
func cutSection(name string) (page, section string) {
	i := strings.LastIndexByte(name, '.')
	return name[:i], name[i+1:]
}

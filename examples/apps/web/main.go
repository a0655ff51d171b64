// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/signal"
	"syscall"
	"time"

	"smcr/userstack"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("web: ")
	listen := flag.String("listen", "", "serve on this `address`")
	dir := flag.String("dir", ".", "serve the files of this `directory`")
	flag.Parse()
	if (*listen == "") == (flag.NArg() == 0) {
		fmt.Fprintln(os.Stderr, "usage: web -listen ADDRESS [-dir DIRECTORY]\n       web URL...")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *dir, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, dir string, urls []string) (err error) {
	stack, err := userstack.New(userstack.Config{})
	if err != nil {
		return err
	}
	// Close tells the peers that the link groups end.
	defer func() { err = errors.Join(err, stack.Close()) }()
	if listen != "" {
		return serve(ctx, stack, listen, dir)
	}
	return get(ctx, stack, urls)
}

// serve serves files until ctx ends.
func serve(ctx context.Context, stack *userstack.Stack, address, dir string) error {
	l, err := stack.Listen("tcp", address)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           http.FileServer(http.Dir(dir)),
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			log.Printf("%s: %s", c.RemoteAddr(), carrier(c))
			return ctx
		},
	}
	fmt.Println("listening on", l.Addr())
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(grace)
	})
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// get prints what the URLs have.
func get(ctx context.Context, stack *userstack.Stack, urls []string) error {
	client := &http.Client{Transport: &http.Transport{
		DialContext:         stack.DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
	}}
	defer client.CloseIdleConnections()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused {
			log.Printf("%s: %s", i.Conn.RemoteAddr(), carrier(i.Conn))
		}
	}})
	for _, url := range urls {
		if err := getOne(ctx, client, url); err != nil {
			return err
		}
	}
	return nil
}

func getOne(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// carrier says what carries the bytes of a connection.
func carrier(c net.Conn) string {
	if userstack.IsSMC(c) {
		return "SMC-R"
	}
	return "TCP"
}

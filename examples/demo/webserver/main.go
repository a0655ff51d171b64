// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// blockSize is the unit of content. Each block begins with its number, so
// that blocks swapped or repeated on the way change the digest.
const blockSize = 64 << 10

func main() {
	listen := flag.String("listen", ":8080", "`address` to listen on")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		log.SetFlags(0)
		log.Fatalf("webserver: %v", err)
	}
}

func run(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("webserver: listening on %s\n", ln.Addr())
	mux := http.NewServeMux()
	mux.Handle("GET /bytes/{n}", newGenerator())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	errc := make(chan error, 1)
	go func() { errc <- srv.Serve(ln) }()
	select {
	case err := <-errc:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// generator serves the bytes. Safe for concurrent use.
type generator struct {
	filler [blockSize]byte

	mu      sync.Mutex
	digests map[int64]string
}

func newGenerator() *generator {
	g := &generator{digests: make(map[int64]string)}
	r := rand.NewChaCha8([32]byte{'s', 'm', 'c', 'r'})
	r.Read(g.filler[:]) // never fails, as documented
	return g
}

func (g *generator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "use the path /bytes/N, where N is a number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	w.Header().Set("X-Content-Sha256", g.digest(n))
	// An error means that the client went away: nobody is left to be told.
	_ = g.write(w, n)
}

// digest returns the SHA-256 of the content of n bytes, in hexadecimal.
func (g *generator) digest(n int64) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s, ok := g.digests[n]; ok {
		return s
	}
	h := sha256.New()
	_ = g.write(h, n) // a hash never fails
	s := hex.EncodeToString(h.Sum(nil))
	if len(g.digests) < 1000 {
		g.digests[n] = s
	}
	return s
}

func (g *generator) write(w io.Writer, n int64) error {
	block := g.filler
	for i := uint64(0); n > 0; i++ {
		binary.BigEndian.PutUint64(block[:], i)
		m, err := w.Write(block[:min(n, blockSize)])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

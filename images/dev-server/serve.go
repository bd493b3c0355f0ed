package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/addons"
	"gpudev/devserver/internal/commandexit"
	"gpudev/devserver/internal/messages"
	"gpudev/devserver/internal/personalization"
	"gpudev/devserver/internal/process"
	"gpudev/devserver/internal/server"
	"gpudev/devserver/internal/setup"
)

const (
	username = "dev"
	// Memory belongs to the user: collect more often rather than hold on to it.
	collectAtPercent = 50
)

type serveOptions struct {
	config    string
	listen    string
	port      int
	home      string
	uid       int
	grace     time.Duration
	login     time.Duration
	keepalive time.Duration
	lastWords string
}

func serve(arguments []string) error {
	options, err := parseServe(arguments)
	if err != nil {
		return err
	}
	debug.SetGCPercent(collectAtPercent)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// Must come first: on a machine that is not a dev server nothing may be changed.
	hostKey, err := readHostKey(filepath.Join(options.config, "host_key"))
	if err != nil {
		return err
	}
	mesh, meshKey, err := readMesh(options, hostKey.PublicKey())
	if err != nil {
		return err
	}
	handleAllSignals()
	children := process.NewChildren()
	user := setup.Options{Name: username, UID: options.uid, Home: options.home, Mesh: mesh}
	place, err := setup.Prepare(user, log)
	if err != nil {
		return err
	}
	if place.Identity.Switches {
		go setup.KeepHosts(filepath.Join(options.config, "hosts"), log)
	}
	board := messages.NewBoard()
	serving := server.New(server.Config{
		HostKey:            hostKey,
		AuthorizedKeysPath: filepath.Join(options.config, "authorized_keys"),
		EnvironmentPath:    filepath.Join(options.config, "environment"),
		OwnVariablesPath:   filepath.Join(options.config, "own_variables"),
		GreetingPath:       filepath.Join(options.config, "greeting"),
		MeshKey:            meshKey,
		Username:           username,
		Home:               place.Home,
		RuntimeDir:         place.RuntimeDir,
		Identity:           place.Identity,
		Shell:              func() string { return setup.LoginShell(username) },
		LoginTime:          options.login,
		Keepalive:          options.keepalive,
	}, children, board, log)
	wanted, err := readJupyter(options.config)
	if err != nil {
		log.Warn("jupyter.unreadable", "error", err)
	}
	serving.Jupyter().Set(wanted)
	return serveUntilStopped(options, serving, children, board, watchCommand(options, place), log)
}

// watchCommand watches for the exit of the detached command that this dev server was reserved for.
func watchCommand(options serveOptions, place setup.Result) commandexit.Watch {
	environment, _ := readOptional(filepath.Join(options.config, "environment")) // unreadable: no detached command
	return commandexit.Watch{
		Home:          place.Home,
		ReservationID: server.FromFile(environment, "GPU_DEV_RESERVATION_ID"),
		Identity:      place.Identity,
	}
}

func serveUntilStopped(
	options serveOptions, serving *server.Server, children *process.Children, board *messages.Board,
	run commandexit.Watch, log *slog.Logger,
) error {
	listener, err := server.Listen(options.listen, options.port)
	if err != nil {
		return err
	}
	if err := addons.Listen(options.port, adjuster(serving), log); err != nil {
		log.Warn("addons.not_listening", "error", err) // users can log in all the same
	}
	if err := messages.Listen(options.port, board, log); err != nil {
		log.Warn("messages.not_listening", "error", err) // users can log in all the same
	}
	personalize(options, serving, log)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	failed := make(chan error, 1)
	go func() { failed <- serving.Serve(listener) }()
	over := make(chan commandexit.Report, 1)
	go func() { over <- run.Wait() }()
	log.Info("serving", "address", listener.Addr().String(), "pid", os.Getpid())
	commandExited := false
	for ending := false; !ending; {
		select {
		case err := <-failed:
			return err
		case why := <-stop:
			log.Info("ending", "signal", why.String(), "grace", options.grace.String())
			ending = true
		case report := <-over:
			commandExited = reportCommandExit(report, options, log)
			ending = commandExited
		}
	}
	_ = listener.Close()
	board.Tell(messages.Message{Text: "This dev server is ending now."})
	children.EndAll(options.grace)
	time.Sleep(lastWords)
	serving.CloseConnections()
	if commandExited {
		if err := logHome(run.Home); err != nil {
			log.Warn("home.not_listed", "error", err)
		}
	}
	log.Info("ended")
	return nil
}

// reportCommandExit returns whether to end: if the exit cannot be reported, ending would look like a failure, so it
// stays.
func reportCommandExit(report commandexit.Report, options serveOptions, log *slog.Logger) bool {
	if err := report.Write(options.lastWords); err != nil {
		log.Warn("command_exit.not_reported", "error", err)
		return false
	}
	log.Info("ending", "why", "the detached command has exited", "grace", options.grace.String())
	return true
}

func personalize(options serveOptions, serving *server.Server, log *slog.Logger) {
	brought, err := readSetup(options.config)
	if err != nil {
		log.Warn("personalization.unreadable", "error", err)
	}
	watch := personalization.NewWatch()
	if err := personalization.Listen(options.port, watch, log); err != nil {
		log.Warn("personalization.not_listening", "error", err)
	}
	serving.Personalize(brought, watch)
}

// lastWords is the time for ended sessions to send their exit status.
const lastWords = 100 * time.Millisecond

func parseServe(arguments []string) (serveOptions, error) {
	var options serveOptions
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.StringVar(&options.config, "config", "/gpudev/config",
		"folder with host_key, authorized_keys and optional files (see README.md)")
	flags.StringVar(&options.listen, "listen", "", "address to listen on; all of them when empty")
	flags.IntVar(&options.port, "port", usualPort, "port to listen on")
	flags.StringVar(&options.home, "home", "/home/"+username, "the user's home")
	flags.IntVar(&options.uid, "uid", 1000, "uid and gid of the user")
	flags.DurationVar(&options.grace, "grace", 15*time.Second, "after SIGTERM, how long sessions may take to end")
	flags.DurationVar(&options.login, "login-time", 2*time.Minute, "how long logging in may take")
	flags.DurationVar(&options.keepalive, "keepalive", 30*time.Second, "silence after which a client gets a keepalive request")
	flags.StringVar(&options.lastWords, "last-words", "/dev/termination-log",
		"file for the exit of the detached command")
	err := flags.Parse(arguments)
	return options, err
}

func readHostKey(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("no host key, so this is not a dev server: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("reading the host key %s: %w", path, err)
	}
	return key, nil
}

func readOptional(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// readMesh reads what the members of a gang share: a key to reach each other, the host key, and their names.
func readMesh(options serveOptions, hostKey ssh.PublicKey) (*setup.Mesh, ssh.PublicKey, error) {
	text, err := readOptional(filepath.Join(options.config, "mesh_key"))
	if err != nil || text == nil {
		return nil, nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh key: %w", err)
	}
	environment, err := readOptional(filepath.Join(options.config, "environment"))
	if err != nil {
		return nil, nil, err
	}
	mesh := &setup.Mesh{
		Key: text, HostKey: string(ssh.MarshalAuthorizedKey(hostKey)), User: username, Port: options.port,
	}
	for host := range strings.SplitSeq(server.FromFile(environment, "GPU_DEV_HOSTS"), ",") {
		if hostName.MatchString(host) {
			mesh.Hosts = append(mesh.Hosts, host)
		}
	}
	return mesh, key.PublicKey(), nil
}

// handleAllSignals: sessions inherit ignored signals, but not handled ones.
func handleAllSignals() {
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, unix.SIGHUP, unix.SIGPIPE, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGQUIT,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH, unix.SIGXFSZ)
	go func() {
		for range ignored {
		}
	}()
}
